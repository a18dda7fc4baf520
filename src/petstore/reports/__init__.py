"""Reports for operators: bills, charts and the status of keys."""
