#!/bin/sh
# /usr/local/bin/petstore: runs the petstore command as the service's user and with the service's settings.
set -eu
if [ "$(id -un)" != petstore ]; then
  if [ "$(id -u)" = 0 ]; then exec runuser -u petstore -- "$0" "$@"; fi
  exec sudo -u petstore -- "$0" "$@"
fi
export PETSTORE_DATA=/var/lib/petstore
# Exit if the file cannot be read. Otherwise, the command could act on the wrong data.
if [ -e /etc/petstore.env ]; then set -a && . /etc/petstore.env && set +a; fi
exec /opt/petstore/.venv/bin/petstore "$@"
