"""Stand-ins for outside services, real enough to be spoken to over a socket."""
