"""Topics: their settings, the ends of their partitions, and what they keep.

config          the settings of a topic: what they may be, and how they are changed; what programs say of groups
topic           a topic as the node keeps it in memory: settings, tails, groups, counters
registry        every topic of the node, by name; stores their settings
tail            the end of each partition in memory: the newest offset and the newest events
follow          reading on, without a group: events as they come
compaction      of each key only the newest event stays
housekeeping    when retention, compaction and metrics have their turn; retention by age, number and size
"""

from mainspring.bus.topics.config import UNDECLARED as UNDECLARED
from mainspring.bus.topics.config import AccessList as AccessList
from mainspring.bus.topics.config import DeclaredGroup as DeclaredGroup
from mainspring.bus.topics.config import TopicChange as TopicChange
from mainspring.bus.topics.config import TopicConfig as TopicConfig
from mainspring.bus.topics.config import encode_topic as encode_topic
from mainspring.bus.topics.config import parse_topic as parse_topic
from mainspring.bus.topics.config import topic_data as topic_data
from mainspring.bus.topics.config import topic_from as topic_from
from mainspring.bus.topics.follow import Entry as Entry
from mainspring.bus.topics.tail import ReadyEvent as ReadyEvent
from mainspring.lazy_imports import offer

offer(globals())
