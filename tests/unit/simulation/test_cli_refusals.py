"""What commands refuse: one line that says so on stderr, nothing on stdout, and no file left."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from fencepost.simulation.cli import main
from fencepost.simulation.lab.clusters.settings import KAFKA_VERSION, NEWEST_KAFKA

FILES = {
    "mistaken.toml": 'duration = "1m"\n\n[group]\nmembers = 0\n\n[[topics]]\nname = "orders"\n',
    "campaign.toml": 'scenarios = ["steady"]',
    "plan.toml": "members = 3\nstart_up = 4\n",
    "document": "{}",
    "empty": "",
    "list": "[]",
    "text": "orders:12\n" * 100,
}
REFUSALS = f"""
simulat | did you mean simulate?
report | an option of simulate, campaign, plan and analyze: --report FILE
--nope | unknown option --nope
--completion | fencepost: --completion: expected one shell of bash, zsh, fish
--completion csh | fencepost: --completion: expected one shell of bash, zsh, fish
--completion bash zsh | fencepost: --completion: expected one shell of bash, zsh, fish
\udcff | expected UTF-8 text
states \udcff | expected UTF-8 text
simulate --set group.id=a\udcff | expected UTF-8 text
scenarios --no-json | --no-json

simulate nope | nope
simulate nope.toml | nope.toml
simulate qqqqqq | and no such file; `fencepost scenarios` lists them
simulate mistaken.toml | mistaken.toml:4: group.members
simulate steady more 'and more' | unexpected argument more (see
simulate '' | an argument: expected a value, got an empty one
simulate --sede 1 | Did you mean --seed?
simulate --seed x | --seed
simulate --seed -1 | --seed
simulate --seed 1.5 | Invalid value for --seed: expected a whole number, got '1.5'
simulate --members 0 | --members
simulate --members 2.6 | Invalid value for --members: expected a whole number, got '2.6'
simulate --duration soon | --duration soon: expected a duration
simulate --duration -5s | --duration requires an argument; a value that begins with - is written --dur
simulate --duration=-5s | --duration -5s: expected a duration such as "250ms", "40s" or "1h", got "-5s"
simulate --duration --seed 3 | --duration requires an argument (see
simulate --set '' | --set: expected a value, got an empty one
simulate --set group.membres=3 | did you mean members?
simulate --set group.members | expected KEY=VALUE
simulate --set group.members=many | group.members
simulate --trace= | --trace: expected a value, got an empty one
simulate --trace no/such/folder.parquet | --trace no/such/folder.parquet
simulate --trace empty/below | --trace empty/below: cannot be written
simulate --trace /dev/null | --trace /dev/null: cannot be written: not a regular file
simulate --trace out --report ./out | --report out: is also written by --trace, expected another file
simulate --report '' | --report: expected a value, got an empty one
simulate --report . | --report .
simulate mistaken.toml --set group.members=1 --report mistaken.toml | --report mistaken.toml: is also read
simulate --mutant zzz | there is no mutant zzz; `fencepost mutants --list`
simulate growing-topics --members 200000 | fencepost simulate: --members 200000: expected
simulate growing-topics --partitions 1 | fencepost simulate: --partitions 1: expected
simulate growing-topics --set group.members=x | fencepost simulate: --set group.members=x: expected

replay document | not a failure
replay nowhere | can't be read
shrink document | not a failure
shrink nowhere | can't be read

states --format pdf | mermaid
states one two | two
states consumer-membr | did you mean consumer-member?
states --as kafka-4 | expected a machine
states stream-thread --as kafka-3 | expected kafka-4
states consumer-group --as kafka-4 | it has no other version

campaign steady --out empty/below | --out empty/below: cannot be written
campaign steady --out empty | --out empty: cannot be written
campaign steady --out . --report no/such/report.html | --report no/such/report.html: cannot be written
campaign steady --out new/out --report no/such/report.html | --report no/such/report.html: cannot be written
campaign steady --seeds 0 | --seeds
campaign steady --seeds x | --seeds x: expected seeds: 100 (from 0 on), 10..29, or 1,5,9
campaign steady --seeds 9..2 | --seeds 9..2: expected the smaller one first
campaign steady --time-limit 0s | --time-limit 0s: expected more than 0s
campaign steady --time-limit long | --time-limit long: expected a duration such as
campaign steady --grid members=x | --grid members=x: expected a number from 1
campaign steady --master nope | --master nope: expected local[N], local[*], spark://HOST:PORT
campaign steady campaign.toml | campaign.toml: is a campaign file: expected no other scenarios

plan plan.toml | plan.toml:2: start_up: expected a duration such as "250ms", "40s" or "1h", got 4
plan --session-timeout 1s --protocol classic | --session-timeout 1s
plan --members 3 --out . | fencepost plan: --out .: is not empty: expected a new directory
plan --members 3 --master nope --out out | --master nope: expected local[N]

analyze | expected a directory of traces, one trace, or --kafka HOST:PORT --topic NAME
analyze . | fencepost analyze: .:
analyze nowhere | fencepost analyze: nowhere:
analyze text --report text | --report text: is also read
analyze --topic t | --topic, --kafka-config, --out, --until-idle, --available-now, --window: needs --kafka
analyze here --window 5 | --window: needs --kafka
analyze --kafka 127.0.0.1:9092 | --kafka: needs --topic NAME
analyze --kafka 127.0.0.1 --topic t | --kafka: expected HOST:PORT, such as 127.0.0.1:9092
analyze --kafka 127.0.0.1:99999 --topic t | --kafka: expected HOST:PORT
analyze here --kafka 127.0.0.1:9092 --topic t | --kafka: reads a topic, expected no files
analyze --kafka 127.0.0.1:9092 --topic t --available-now --until-idle 3 | --until-idle: has no effect
analyze --kafka 127.0.0.1:9092 --topic t --until-idle 0 | until-idle
analyze --kafka 127.0.0.1:9 --topic t | 3: answers at 127.0.0.1:9 (connection refused): start one

serve --topics orders | expected NAME:PARTITIONS
serve --topics orders:x | expected NAME:PARTITIONS
serve --topics a:\N{ARABIC-INDIC DIGIT THREE} | expected NAME:PARTITIONS
serve --topics a:1,,b:2 | expected NAME:PARTITIONS
serve --topics orders:0 | --topics orders:0: 0 partitions, expected 1 to
serve --topics 'a b:1' | --topics a b:1: topic name 'a b'
serve --topics a:1,a:2 | twice
serve --config nope=1 | --config: unknown configuration 'nope'; known are
serve --config group.consumer.session.timeout.ms | expected KEY=VALUE
serve --config ' =1' | --config  =1: expected KEY=VALUE
serve --config group.consumer.session.timeout=1 | group.consumer.session.timeout.ms
serve --config group.consumer.session.timeout.ms=soon | group.consumer.session.timeout.ms
serve --config auto.create.topics.enable=ja | --config: auto.create.topics.enable
serve --config num.partitions=0 | --config: num.partitions
serve --config broker.rack=a | --config broker.rack: differs by broker, expected --racks
serve --config replica.selector.class=x | --config: replica.selector.class: 'x' is unknown
serve --port 65536 | --port
serve --port 65535 --brokers 2 | --brokers 2 from --port 65535: the last port is beyond
serve --brokers 0 | --brokers
serve --brokers 2 --racks a | --racks a: expected 2 names separated by commas, one for each
serve --brokers 2 --racks a, | --racks a,: expected 2 names separated by commas
serve --sasl-user alice | --sasl-user alice: expected alice:PASSWORD, or the password in the env
serve --sasl-user :geheim | --sasl-user: user '': expected a name
serve --sasl-user alice: | --sasl-user: user 'alice': expected a password
serve --sasl-user alice:geheim --sasl-user alice:geheim | user 'alice' is given twice
serve --sasl-users /no/file | --sasl-users /no/file: can't be read: no such file or directory
serve --tls-key key.pem | --tls-key: expected with --tls-cert FILE
serve --tls-cert /no/file | TLS certificate /no/file: no such file or directory
serve --journal-repair | --journal-repair: needs --journal FILE
serve --journal-records | --journal-records: needs --journal FILE
serve --journal text | this is not a journal
serve --journal . | journal .:
serve --journal no/folder | journal no/folder:

cluster | requires an argument
cluster sideways | sideways
cluster up --nodes 2 | --nodes
cluster up --runner podman | --runner
cluster up --port 0 | --port
cluster up --kafka 4.0.0 | Choose from: "{KAFKA_VERSION}", "{NEWEST_KAFKA}".
cluster down --nodes 3 | --nodes: needs the action up

chaos nosuch | no scenario 'nosuch'
chaos sac-churn | sac-churn is about single active consumers
chaos streams-failures --client confluent | Streams application
chaos steady --duration soon | --duration: expected a duration
chaos steady --duration 10ms | --duration 10ms: expected at least a second
chaos steady --cluster nonsense | --cluster: expected HOST:PORT, such as
chaos steady --cluster 127.0.0.1:1 | 3: no broker answers at 127.0.0.1:1
chaos steady --cluster 127.0.0.1:1 --kafka 4.4.0 | --kafka: needs --cluster jvm or docker, not a running
chaos steady --cluster 127.0.0.1:1 --profile stock | --profile: needs --cluster jvm or docker, not a running
chaos steady --cluster 127.0.0.1:1 --nodes 1 | --nodes: needs --cluster jvm or docker, not a running
chaos steady --cluster 127.0.0.1:1 --set config.x=1 | --set config.x=1: has no effect: the brokers at
chaos steady --nodes 2 | nodes
chaos steady --trace /nowhere/t.parquet | --trace /nowhere/t.parquet: cannot be written
chaos steady --kafka 4.0.0 | Choose from: "{KAFKA_VERSION}", "{NEWEST_KAFKA}".
chaos growing-topics --members 200000 | fencepost chaos: --members 200000: expected
chaos growing-topics --partitions 1 | fencepost chaos: --partitions 1: expected
chaos growing-topics --set group.members=x | fencepost chaos: --set group.members=x: expected

compare nothing-like-it | nothing-like-it
compare steady --duration soon | --duration
compare steady --duration 10ms | at least a second
compare steady --set group.colour=red | colour
compare steady --seeds 0 | seeds
compare steady --tolerance 0 | --tolerance 0: expected a number above 0, such as 0.1 for 10 %
compare steady --tail-tolerance -1 | --tail-tolerance -1: expected a number above 0
compare steady --master nowhere | --master nowhere: expected local[N]
compare steady --out . | --out .: is not empty: expected a new directory
compare steady --out new/out --report no/report.html | --report no/report.html: cannot be written
compare steady --cluster 127.0.0.1:1 --kafka 4.4.0 | --kafka: needs --cluster jvm or docker, not a running
compare steady --cluster 127.0.0.1:1 --profile stock | --profile: needs --cluster jvm or docker, not a running
compare steady --cluster 127.0.0.1:1 --nodes 3 | --nodes: needs --cluster jvm or docker, not a running
compare steady --cluster 127.0.0.1:1 --set config.x=1 | --set config.x=1: has no effect: the brokers at
compare steady --kafka 4.0.0 | Choose from: "{KAFKA_VERSION}", "{NEWEST_KAFKA}".
compare growing-topics --members 200000 | fencepost compare: --members 200000: expected
compare growing-topics --partitions 1 | fencepost compare: --partitions 1: expected
compare growing-topics --set group.members=x | fencepost compare: --set group.members=x: expected

conform | one of --cluster and --vectors
conform --cluster h:1 --vectors f | one of --cluster and --vectors
conform --cluster 127.0.0.1:1 | 3: no broker answers at 127.0.0.1:1
conform --cluster 127.0.0.1:1 --schedules nowhere | nowhere
conform --cluster 127.0.0.1:1 --schedules document | document
conform --cluster 127.0.0.1:1 --schedules list | list
conform --cluster 127.0.0.1:1 --schedules text | text
conform --cluster 127.0.0.1:1 --kafka 4.4.0 | --kafka: needs --cluster jvm or docker, not a running
conform --cluster 127.0.0.1:1 --profile stock | --profile: needs --cluster jvm or docker, not a running
conform --cluster jvm --kafka 4.0.0 | Choose from: "{KAFKA_VERSION}", "{NEWEST_KAFKA}".
conform --vectors answers.jsonl --seed 3 --kafka 4.4.0 | fencepost conform: --seed, --kafka: needs --cluster
conform --vectors empty | empty
conform --vectors text | text
conform --vectors document | document

explore nowhere | nowhere
explore --kinds lat | no fault is called 'lat'; did you mean late?
explore --kinds crashes,zzz | no fault is called 'zzz'; there are breaks, late
explore --members 0 | members
explore --members 10 | members
explore --faults -1 | faults
explore --mutant nobody | nobody

mutants nope | there is no mutant nope
mutants --seeds none | --seeds
mutants --sample 3 | --sample: needs --automatic
mutants --without judge | needs --matrix
"""
"""Commands with what they say; before it the exit code 3, if it is not 2."""


@pytest.mark.parametrize("row", [row for row in REFUSALS.splitlines() if row])
def test_what_is_refused_is_one_line(row, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    words, _, told = row.partition(" | ")
    code = 3 if told.startswith("3: ") else 2
    assert main(shlex.split(words)) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("fencepost")
    assert shown.err.count("\n") == 1
    assert told.removeprefix("3: ") in shown.err
    assert "geheim" not in shown.err
    left = {each.name: each.read_text() for each in tmp_path.iterdir()}
    assert left == FILES
