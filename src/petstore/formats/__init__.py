"""Animals in files: reads .jsonl, .csv and .json files, and writes .jsonl and .csv files."""
