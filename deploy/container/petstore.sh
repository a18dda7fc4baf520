#!/bin/sh
# /usr/local/bin/petstore in the container: runs the petstore command with the settings in a mounted secret, if there is
# one. This keeps passwords out of the container's configuration. The secret has the same format as petstore.env.
set -eu
if [ -e /run/secrets/petstore.env ]; then set -a && . /run/secrets/petstore.env && set +a; fi
exec /opt/petstore/.venv/bin/petstore "$@"
