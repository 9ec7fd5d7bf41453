"""Programs for those who work on Mainspring: they make reference pages and check the rules of the house."""
