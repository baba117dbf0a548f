"""The sandboxes that live now, what ended runs left, and the queue of each job that runs."""
