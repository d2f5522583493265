"""What every folder may use: whole files, tables of text, statistics, parts of messages. No torch."""
