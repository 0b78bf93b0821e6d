"""Decisions, pure: snapshot + request → decision with reasons. No clock, no IO, no await inside."""
