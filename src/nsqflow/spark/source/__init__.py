"""The source: reads topics as a streaming or batch DataFrame."""
