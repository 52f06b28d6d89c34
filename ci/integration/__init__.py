"""The pre-integration checklist as a program, and the scaffolding of an integration."""
