"""The handler of each API."""

from __future__ import annotations

from collections.abc import Mapping

from fencepost.coordinator.codec.registry import REGISTRY, ApiKey
from fencepost.coordinator.kinds import FURTHER_KINDS
from fencepost.coordinator.server import (
    admin_apis,
    cluster_apis,
    config_apis,
    fetch,
    group_apis,
    inspection_apis,
    log_apis,
    login,
    offset_apis,
    quota_apis,
    security_apis,
    transaction_apis,
)
from fencepost.coordinator.server.services import Handler


def handlers() -> Mapping[int, Handler]:
    """Return the handlers of one broker; those with a memory get a fresh one."""
    return {
        ApiKey.API_VERSIONS: cluster_apis.api_versions,
        ApiKey.SASL_HANDSHAKE: login.handshake,
        ApiKey.SASL_AUTHENTICATE: login.authenticate,
        ApiKey.METADATA: cluster_apis.metadata,
        ApiKey.FIND_COORDINATOR: cluster_apis.find_coordinator,
        ApiKey.DESCRIBE_CLUSTER: cluster_apis.describe_cluster,
        ApiKey.PRODUCE: log_apis.produce,
        ApiKey.FETCH: fetch.FetchApi(),
        ApiKey.LIST_OFFSETS: log_apis.list_offsets,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: log_apis.offset_for_leader_epoch,
        ApiKey.DELETE_RECORDS: log_apis.delete_records,
        ApiKey.INIT_PRODUCER_ID: transaction_apis.init_producer_id,
        ApiKey.ADD_PARTITIONS_TO_TXN: transaction_apis.add_partitions,
        ApiKey.ADD_OFFSETS_TO_TXN: transaction_apis.ask,
        ApiKey.END_TXN: transaction_apis.ask,
        ApiKey.TXN_OFFSET_COMMIT: transaction_apis.offset_commit,
        ApiKey.CONSUMER_GROUP_HEARTBEAT: group_apis.consumer_group_heartbeat,
        ApiKey.CONSUMER_GROUP_DESCRIBE: group_apis.describe,
        ApiKey.STREAMS_GROUP_HEARTBEAT: group_apis.streams_group_heartbeat,
        ApiKey.STREAMS_GROUP_DESCRIBE: group_apis.describe,
        ApiKey.LIST_GROUPS: group_apis.ask,
        ApiKey.JOIN_GROUP: group_apis.join_group,
        ApiKey.SYNC_GROUP: group_apis.sync_group,
        ApiKey.HEARTBEAT: group_apis.ask,
        ApiKey.DESCRIBE_GROUPS: group_apis.describe,
        ApiKey.DELETE_GROUPS: group_apis.delete_groups,
        ApiKey.LEAVE_GROUP: group_apis.leave_group,
        ApiKey.OFFSET_COMMIT: offset_apis.offset_commit,
        ApiKey.OFFSET_FETCH: offset_apis.offset_fetch,
        ApiKey.OFFSET_DELETE: offset_apis.offset_delete,
        ApiKey.CREATE_TOPICS: admin_apis.create_topics,
        ApiKey.DELETE_TOPICS: admin_apis.delete_topics,
        ApiKey.CREATE_PARTITIONS: admin_apis.create_partitions,
        ApiKey.DESCRIBE_CONFIGS: config_apis.describe_configs,
        ApiKey.ALTER_CONFIGS: config_apis.alter_configs,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: config_apis.alter_configs,
        ApiKey.DESCRIBE_ACLS: security_apis.describe_acls,
        ApiKey.CREATE_ACLS: security_apis.create_acls,
        ApiKey.DELETE_ACLS: security_apis.delete_acls,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: quota_apis.describe_quotas,
        ApiKey.ALTER_CLIENT_QUOTAS: quota_apis.alter_quotas,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: security_apis.describe_scram,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: security_apis.alter_scram,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: cluster_apis.describe_topic_partitions,
        ApiKey.DESCRIBE_LOG_DIRS: inspection_apis.describe_log_dirs,
        ApiKey.DESCRIBE_PRODUCERS: inspection_apis.describe_producers,
        ApiKey.DESCRIBE_TRANSACTIONS: inspection_apis.describe_transactions,
        ApiKey.LIST_TRANSACTIONS: inspection_apis.list_transactions,
        ApiKey.LIST_CONFIG_RESOURCES: inspection_apis.list_config_resources,
        **{key: group_apis.ask for kind in FURTHER_KINDS for key in kind.api_keys if key in REGISTRY},
    }
