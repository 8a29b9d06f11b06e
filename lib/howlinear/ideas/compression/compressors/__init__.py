"""Rivals of own units: compressors of other papers, each as its paper describes it."""
