"""Notes and labels of users on rollouts: the one thing that the dashboard itself stores."""
