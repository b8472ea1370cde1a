"""What a guarded call costs, measured against doing it by hand and against the peers."""
