"""What daemons share, a closed list: web, tasks, run, config, logs, host, link,
and for who may do what: identity, tls, dial, splice, guard, keyfile."""
