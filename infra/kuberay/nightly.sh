#!/bin/sh
# Create today's RayJob once, wait for its end, and end with the exit code of its verdict file.
# Whatever goes wrong on the way is 3: nothing is established. FLEET_NAME names the night.
set -u
name="${FLEET_NAME:?}-${FLEET_DAY:-$(date -u +%Y-%m-%d)}"
verdict="${FLEET_VERDICTS:-/data/verdicts}/$name.json"
template="${FLEET_TEMPLATE:-/nightly/rayjob.yaml}"

give_up() { echo "$name: $1" >&2; exit 3; }

# A night that somebody started by hand is a night as well.
jobs=$(kubectl get rayjobs -l app.kubernetes.io/name=fleet-nightly \
  -o 'jsonpath={range .items[*]}{.metadata.name}={.status.jobDeploymentStatus}{"\n"}{end}') \
  || give_up "cannot list rayjobs"
other=$(echo "$jobs" | grep -v -e '^$' -e "^$name=" -e '=Complete$' -e '=Failed$' -e '=ValidationFailed$')
[ -z "$other" ] || give_up "another night still runs: $other"

if told=$(sed "s/FLEET_NIGHT/$name/g" "$template" | kubectl create -f - 2>&1); then
  echo "$told"
else
  case $told in
    *AlreadyExists*) echo "$name was created before" ;;
    *) give_up "$told" ;;
  esac
fi

while :; do
  state=$(kubectl get rayjob "$name" -o 'jsonpath={.status.jobDeploymentStatus}') \
    || give_up "it is gone"
  case $state in Complete | Failed | ValidationFailed) break ;; esac
  sleep "${FLEET_POLL_S:-30}"
done

[ -s "$verdict" ] || give_up "ended as $state without a verdict: kubectl describe rayjob $name"
cat "$verdict"
code=$(sed -n 's/^  "exit_code": \([0-3]\),$/\1/p' "$verdict")
case $code in
  [0-3]) exit "$code" ;;
  *) give_up "no exit code in $verdict" ;;
esac
