# The trainer arrives here.
