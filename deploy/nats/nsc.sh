#!/bin/sh
# The same roles with JWTs: an operator, the accounts EXEC and EXEC_OBSERVER, and one
# scoped signing key for each role, so that a user has exactly what its role says, also
# later when the role is changed. Needs nsc; run it once, look at what it says, then
#
#   nsc generate config --nats-resolver --sys-account SYS > resolver.conf   # for the servers
#   nsc push --all                                                          # to running servers
#
# More users:
#
#   nsc add user --account EXEC --name worker-2 -K worker
#   nsc add user --account EXEC --name acme -K publisher      # of the tenant acme
#   nsc add user --account EXEC --name acme-ci --tag tenant:acme -K trusted
#   nsc generate creds --account EXEC --name acme --output-file acme.creds
#
# A publisher's name is its tenant: {{name()}} below. A trusted publisher's tenant is its
# tag, {{tag(tenant)}}, which nsc writes in small letters: so a tenant can have several.
# Do as you like it in both, but never let a name or a tag hold a * or a dot: it would be
# more than one tenant.
set -eu

# role ACCOUNT NAME FLAGS… makes a signing key of the account that can do nothing but
# sign users of that role.
role() {
	account=$1 name=$2
	shift 2
	key=$(nsc edit account --name "$account" --sk generate 2>&1 | grep -o 'A[A-Z2-7]\{55\}' | tail -n 1)
	nsc edit signing-key --account "$account" --sk "$key" --role "$name" "$@"
}

nsc add operator --name sallyport --sys
nsc add account --name EXEC
nsc edit account --name EXEC --js-mem-storage 64M --js-disk-storage 8G --js-streams 16 --js-consumer 10000
nsc add account --name EXEC_OBSERVER

role EXEC worker \
	--allow-pub '$JS.API.INFO' \
	--allow-pub '$JS.API.STREAM.INFO.*' \
	--allow-pub '$JS.API.CONSUMER.INFO.EXEC_JOBS.*' \
	--allow-pub '$JS.API.CONSUMER.LIST.EXEC_JOBS' \
	--allow-pub '$JS.API.CONSUMER.MSG.NEXT.EXEC_JOBS.*' \
	--allow-pub '$JS.ACK.EXEC_JOBS.>' \
	--allow-pub '$JS.API.STREAM.MSG.GET.EXEC_RUNS' \
	--allow-pub 'exec.run.*.*' \
	--allow-pub 'exec.out.*.*' \
	--allow-pub 'exec.dead.*.*.*' \
	--allow-pub 'exec.ctl.*.*' \
	--allow-pub '$KV.EXEC_WORKERS.*' \
	--allow-pub '$JS.API.STREAM.MSG.GET.EXEC_LEDGER' \
	--allow-pub '$JS.API.CONSUMER.CREATE.EXEC_LEDGER.*.exec.quarantine.*.*.*' \
	--allow-pub '$JS.API.CONSUMER.MSG.NEXT.EXEC_LEDGER.*' \
	--allow-pub '$JS.ACK.EXEC_LEDGER.>' \
	--allow-pub 'exec.lease.*.*' \
	--allow-pub 'exec.quarantine.*.*.*' \
	--allow-pub '$JS.API.STREAM.MSG.GET.OBJ_EXEC_FILES' \
	--allow-pub '$JS.API.STREAM.PURGE.OBJ_EXEC_FILES' \
	--allow-pub '$O.EXEC_FILES.>' \
	--allow-pub '_INBOX.*.>' \
	--allow-pub 'reply.*.>' \
	--allow-pub '_INBOX_exec.worker.>' \
	--allow-pub '_INBOX_exec.gateway.>' \
	--allow-sub '_INBOX_exec.worker.>' \
	--allow-sub 'exec.ctl.*.*' \
	--allow-sub 'exec.worker.leases' \
	--allow-sub 'exec.reaper.*' \
	--allow-sub '$SRV.PING' \
	--allow-sub '$SRV.INFO' \
	--allow-sub '$SRV.STATS' \
	--allow-sub '$SRV.*.sallyport-worker' \
	--allow-sub '$SRV.*.sallyport-worker.*' \
	--allow-sub '$SRV.*.sallyport-reaper' \
	--allow-sub '$SRV.*.sallyport-reaper.*'

role EXEC gateway \
	--allow-pub '$JS.API.INFO' \
	--allow-pub '$JS.API.STREAM.INFO.*' \
	--allow-pub '$JS.API.CONSUMER.INFO.EXEC_JOBS.*' \
	--allow-pub '$JS.API.CONSUMER.LIST.EXEC_JOBS' \
	--allow-pub 'exec.job.*.*.*' \
	--allow-pub 'exec.run.*.*' \
	--allow-pub 'exec.ctl.*.*' \
	--allow-pub '$JS.API.STREAM.MSG.GET.EXEC_JOBS' \
	--allow-pub '$JS.API.STREAM.MSG.GET.EXEC_RUNS' \
	--allow-pub '$JS.API.DIRECT.GET.EXEC_OUT' \
	--allow-pub '_INBOX.*.>' \
	--allow-pub 'reply.*.>' \
	--allow-sub '_INBOX_exec.gateway.>' \
	--allow-sub 'exec.submit.*.*' \
	--allow-sub 'exec.status.*.*' \
	--allow-sub 'exec.cancel.*.*' \
	--allow-sub 'exec.read.*.*' \
	--allow-sub '$SRV.PING' \
	--allow-sub '$SRV.INFO' \
	--allow-sub '$SRV.STATS' \
	--allow-sub '$SRV.*.sallyport-gateway' \
	--allow-sub '$SRV.*.sallyport-gateway.*'

role EXEC reaper \
	--allow-pub '$JS.API.INFO' \
	--allow-pub '$JS.API.STREAM.INFO.*' \
	--allow-pub '$JS.API.CONSUMER.INFO.EXEC_JOBS.*' \
	--allow-pub '$JS.API.CONSUMER.LIST.EXEC_JOBS' \
	--allow-pub '$JS.API.STREAM.MSG.GET.EXEC_LEDGER' \
	--allow-pub '$JS.API.CONSUMER.CREATE.EXEC_LEDGER.*.exec.quarantine.*.*.*' \
	--allow-pub '$JS.API.CONSUMER.MSG.NEXT.EXEC_LEDGER.*' \
	--allow-pub '$JS.ACK.EXEC_LEDGER.>' \
	--allow-pub 'exec.lease.*.*' \
	--allow-pub 'exec.quarantine.*.*.*' \
	--allow-pub '_INBOX.@operator.>' \
	--allow-sub '_INBOX_exec.reaper.>' \
	--allow-sub 'exec.reaper.*' \
	--allow-sub '$SRV.PING' \
	--allow-sub '$SRV.INFO' \
	--allow-sub '$SRV.STATS' \
	--allow-sub '$SRV.*.sallyport-reaper' \
	--allow-sub '$SRV.*.sallyport-reaper.*'

role EXEC operator \
	--allow-pub '$JS.API.>' \
	--allow-pub '$JS.FC.>' \
	--allow-pub '$KV.EXEC_WORKERS.>' \
	--allow-pub '$O.EXEC_FILES.>' \
	--allow-pub 'exec.quarantine.*.*.*' \
	--allow-pub 'exec.lease.*.*' \
	--allow-pub 'exec.reaper.*' \
	--allow-pub 'exec.worker.leases' \
	--allow-pub '$SRV.>' \
	--allow-sub '_INBOX.@operator.>' \
	--allow-sub 'exec.live.*.*' \
	--allow-sub '$JS.EVENT.ADVISORY.>'

role EXEC publisher \
	--allow-pub 'exec.submit.{{name()}}.*' \
	--allow-pub 'exec.status.{{name()}}.*' \
	--allow-pub 'exec.cancel.{{name()}}.*' \
	--allow-pub 'exec.read.{{name()}}.*' \
	--allow-sub '_INBOX.{{name()}}.>' \
	--allow-sub 'reply.{{name()}}.>' \
	--allow-sub 'exec.live.{{name()}}.*'

role EXEC trusted \
	--allow-pub 'exec.submit.{{tag(tenant)}}.*' \
	--allow-pub 'exec.status.{{tag(tenant)}}.*' \
	--allow-pub 'exec.cancel.{{tag(tenant)}}.*' \
	--allow-pub 'exec.read.{{tag(tenant)}}.*' \
	--allow-pub 'exec.job.{{tag(tenant)}}.*.*' \
	--allow-pub '$JS.API.STREAM.INFO.OBJ_EXEC_FILES' \
	--allow-pub '$JS.API.STREAM.PURGE.OBJ_EXEC_FILES' \
	--allow-pub '$JS.API.DIRECT.GET.OBJ_EXEC_FILES.>' \
	--allow-pub '$JS.API.CONSUMER.CREATE.OBJ_EXEC_FILES.>' \
	--allow-pub '$JS.API.CONSUMER.DELETE.OBJ_EXEC_FILES.>' \
	--allow-pub '$JS.FC.OBJ_EXEC_FILES.>' \
	--allow-pub '$O.EXEC_FILES.>' \
	--allow-sub '_INBOX.{{tag(tenant)}}.>' \
	--allow-sub 'reply.{{tag(tenant)}}.>' \
	--allow-sub 'exec.live.{{tag(tenant)}}.*'

role EXEC_OBSERVER observer \
	--allow-pub '$JS.API.INFO' \
	--allow-pub '$JS.API.STREAM.NAMES' \
	--allow-pub '$JS.API.STREAM.LIST' \
	--allow-pub '$JS.API.STREAM.INFO.*' \
	--allow-pub '$JS.API.CONSUMER.NAMES.*' \
	--allow-pub '$JS.API.CONSUMER.LIST.*' \
	--allow-pub '$JS.API.CONSUMER.INFO.*.*' \
	--allow-pub '$JS.API.STREAM.MSG.GET.EXEC_LEDGER' \
	--allow-pub '$JS.API.STREAM.MSG.GET.EXEC_DEAD' \
	--allow-pub '$JS.API.DIRECT.GET.KV_EXEC_WORKERS.>' \
	--allow-sub '_INBOX.>'

# What observers may ask for, and no other account: each is private and needs a token.
observer=$(nsc describe account --name EXEC_OBSERVER --field sub | tr -d '"')
token=$(mktemp)
for subject in \
	'$JS.API.INFO' \
	'$JS.API.STREAM.NAMES' \
	'$JS.API.STREAM.LIST' \
	'$JS.API.STREAM.INFO.*' \
	'$JS.API.CONSUMER.NAMES.*' \
	'$JS.API.CONSUMER.LIST.*' \
	'$JS.API.CONSUMER.INFO.*.*' \
	'$JS.API.STREAM.MSG.GET.EXEC_LEDGER' \
	'$JS.API.STREAM.MSG.GET.EXEC_DEAD' \
	'$JS.API.DIRECT.GET.KV_EXEC_WORKERS.>'; do
	nsc add export --account EXEC --name "$subject" --subject "$subject" --service --private
	nsc generate activation --account EXEC --subject "$subject" --target-account "$observer" --output-file "$token"
	nsc add import --account EXEC_OBSERVER --name "$subject" --token "$token"
done
rm -f "$token"

for role in worker gateway reaper operator; do
	nsc add user --account EXEC --name "$role" -K "$role"
done
nsc add user --account EXEC --name demo -K publisher
nsc add user --account EXEC --name demo-trusted --tag tenant:demo -K trusted
nsc add user --account EXEC_OBSERVER --name observer -K observer
