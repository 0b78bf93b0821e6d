"""The book, pure: which GPU is where, who sits on it, what is reserved. It changes only through `apply(event)`."""
