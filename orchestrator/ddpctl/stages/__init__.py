"""One verb each: (plan, fleet, tell) -> outcome. Knows neither typer nor rich."""
