"""The sink: writes a DataFrame to topics."""
