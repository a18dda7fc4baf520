#!/bin/sh
# /usr/local/bin/petstore: runs the petstore command as the service's user and with the service's settings.
set -eu
if [ "$(id -un)" != petstore ]; then
  if [ "$(id -u)" = 0 ]; then exec runuser -u petstore -- "$0" "$@"; fi
  exec sudo -u petstore -- "$0" "$@"
fi
export PETSTORE_DATA=/var/lib/petstore
# If the file cannot be read, the script ends. Otherwise, a command could act on data that is not the service's.
if [ -e /etc/petstore.env ]; then set -a && . /etc/petstore.env && set +a; fi
exec /opt/petstore/.venv/bin/petstore "$@"
