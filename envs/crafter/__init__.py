"""Crafter (Hafner, 2022) on Craftax-Classic's engine, with BALROG's kind of text (LAC, appendix A.12)."""
