#!/bin/sh
# /usr/local/bin/petstore in the container: the petstore command with the settings of a mounted secret, if there is one.
# Passwords are in that file and not in the container's description. It has the form of petstore.env.
set -eu
if [ -e /run/secrets/petstore.env ]; then set -a && . /run/secrets/petstore.env && set +a; fi
exec /opt/petstore/.venv/bin/petstore "$@"
