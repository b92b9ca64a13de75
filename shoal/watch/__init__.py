"""Watch runs: a live page, a report to send and the state of a run, all read from the files of its directory."""
