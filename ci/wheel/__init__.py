"""Look, judge, touch: facts of a wheel, rules about them, repair, gates, and the build record."""
