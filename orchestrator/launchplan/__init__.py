"""From a job and its site to a plan with every value settled, and to its scripts. Pure."""
