"""Judgement: what a right answer to each exercise must satisfy."""
