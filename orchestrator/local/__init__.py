"""The site `local`: one machine, no Slurm. The job id is that of submitit's controller process."""
