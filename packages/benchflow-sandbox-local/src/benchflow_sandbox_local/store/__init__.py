"""What is kept on disk or in memory about boxes: labels, owners, layers, reaping."""
