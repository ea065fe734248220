"""What a run writes down: metrics, receipt, best weights, evidence of faults. No torch."""
