"""The local runtime: one process per replica on one machine, and the supervisor that watches over them."""
