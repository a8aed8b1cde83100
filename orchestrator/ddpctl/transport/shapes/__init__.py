"""The shapes of answers that are no values of spec/, and the checks of an answer against its request."""
