"""What daemons share, a closed list: web, tasks, run, config, logs, host, link."""
