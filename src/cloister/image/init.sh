#!/bin/sh
# The first process of a release's image. All it needs is in the image, which is measured; what changes (model, log of
# releases, keys) is on the first disk, from which nothing is executed. The kernel's command line is measured, too:
#   … cloister.model=NAME
set -eu
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev || true
mount -t tmpfs -o nosuid,nodev tmpfs /run
mount -t configfs configfs /sys/kernel/config || true
mkdir -p /run/data /run/cloister
mount -o ro,nosuid,nodev,noexec /dev/vda /run/data
model=$(tr ' ' '\n' < /proc/cmdline | sed -n 's/^cloister\.model=//p')
export HOME=/run CLOISTER_CACHE=/run/cloister PATH=/usr/local/bin:/usr/bin:/bin
cd /opt/cloister/src
exec python3 -s -B -m cloister serve --attester tsm --release /run/data/releases --model "/run/data/$model" \
    --host 0.0.0.0 --keys /run/data/keys.toml
