#!/bin/sh
# Creates the secrets for the cluster in compose.yaml, in the directory `secrets`: passwords, and a certificate for localhost.
# Replace proxy.pem with your own certificate chain, followed by the private key.
set -eu
# The containers run as different users and must be able to read the files, so only the directory is private.
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
