#!/bin/sh
# The secrets of compose.yaml's cluster, in the directory `secrets`: passwords, and a certificate for localhost.
# Replace proxy.pem by your own: the certificate chain, then the private key.
set -eu
# Containers run as other users than the files' owner. So the directory is closed, and the files are not.
mkdir -m 700 secrets
cd secrets
postgres=$(openssl rand -hex 24)
valkey=$(openssl rand -hex 24)
printf %s "$postgres" > postgres-password
printf 'requirepass %s\nappendonly yes\nmaxmemory-policy noeviction\n' "$valkey" > valkey.conf
printf 'PETSTORE_STORE=postgresql://petstore:%s@postgres/petstore\nPETSTORE_GATE=valkey://:%s@valkey:6379/0\n' \
  "$postgres" "$valkey" > petstore.env
openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
  -keyout key.pem -out chain.pem 2> /dev/null
cat chain.pem key.pem > proxy.pem
rm chain.pem key.pem
