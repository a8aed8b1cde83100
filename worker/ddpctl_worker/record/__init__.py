"""The record of a run on this host: where its files lie, what they say, and the state that follows from them."""
