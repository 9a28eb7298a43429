"""Rating in the browser: what to show next, what a key means, what the ratings yield."""
