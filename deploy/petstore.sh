#!/bin/sh
# /usr/local/bin/petstore: the petstore command as the service's user and with the service's settings.
set -eu
if [ "$(id -un)" != petstore ]; then
  if [ "$(id -u)" = 0 ]; then exec runuser -u petstore -- "$0" "$@"; fi
  exec sudo -u petstore -- "$0" "$@"
fi
export PETSTORE_DATA=/var/lib/petstore
# A file that cannot be read ends the script: a command could otherwise act on other data than the service's.
if [ -e /etc/petstore.env ]; then set -a && . /etc/petstore.env && set +a; fi
exec /opt/petstore/.venv/bin/petstore "$@"
