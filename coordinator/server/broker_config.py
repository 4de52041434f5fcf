"""The properties of a broker of ours, sorted by what they are about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fencepost.coordinator.config import (
    REPLICA_SELECTOR,
    GroupCoordinatorConfig,
    NewTopicConfig,
    ReplicaSelector,
    replica_selector_from,
    setting_names,
    unknown_setting,
)
from fencepost.coordinator.server.topic_configs import TopicDefaults


class BrokerConfig(NamedTuple):
    """All that a broker's properties say."""

    groups: GroupCoordinatorConfig
    new_topics: NewTopicConfig
    topic_defaults: TopicDefaults
    replica_selector: ReplicaSelector | None = None

    @classmethod
    def from_properties(cls, properties: Mapping[str, object]) -> BrokerConfig:
        """Return the configuration that these properties describe; values are text or already typed.

        :raises FencepostError: for a name that does not exist, a value of the wrong type, one out of its
            range, or values that contradict each other.
        """
        known = (
            *setting_names(GroupCoordinatorConfig),
            *setting_names(NewTopicConfig),
            *TopicDefaults.names(),
            REPLICA_SELECTOR,
        )
        for name in properties:
            if name not in known:
                raise unknown_setting(name, known)
        left = dict(properties)
        new_topics, topic_defaults = NewTopicConfig.taken_from(left), TopicDefaults.taken_from(left)
        selector = replica_selector_from(left)
        return cls(GroupCoordinatorConfig.from_properties(left), new_topics, topic_defaults, selector)
