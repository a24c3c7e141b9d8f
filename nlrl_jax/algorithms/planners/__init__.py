"""Rules of decision that a language model plans with, one file each, named as in their papers (LAC, appendix C.2)."""
