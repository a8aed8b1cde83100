"""Only what a script imports from here."""
