"""A box that is spoken to over named pipes in one of its directories."""
