"""What protects a job from a snippet's mistakes: judged before it runs (`judge`, by the lists of `rules`),
watched while it does (`watching`)."""
