"""The words of all tasks. Few, so that a small vocabulary has most of them as one token.

Names and places called `NEW_` appear in the held-out split only.
"""

NAMES = (
    "Anna", "Tom", "Lily", "Max", "Mia", "Ben", "Eva", "Leo",
    "Nina", "Paul", "Sara", "Jack", "Emma", "Otto", "Ruth", "Hugo",
)  # fmt: skip
NEW_NAMES = ("Ida", "Finn", "Vera", "Karl")
NAMES_CHINESE = ("小明", "小红", "小李", "小王", "小白", "小林")
NEW_NAMES_CHINESE = ("小黄", "小山")

CITIES = (
    "Paris", "Rome", "Oslo", "Cairo", "Tokyo", "Lima",
    "Berlin", "Madrid", "Delhi", "Dublin", "Boston", "Milan",
)  # fmt: skip
NEW_CITIES = ("Vienna", "Quito", "Sofia")
CITIES_CHINESE = ("北京", "上海", "广州", "南京", "西安", "东海")
NEW_CITIES_CHINESE = ("北海", "南安")

ADJECTIVES = (
    "red", "blue", "green", "black", "white", "gold", "gray", "pink", "brown", "silver",
    "old", "new", "big", "small", "soft", "warm", "cold", "dark", "long", "round",
)  # fmt: skip
ADJECTIVES_CHINESE = ("红", "蓝", "绿", "黑", "白", "黄", "大", "小", "新", "旧")
COLOURS = ADJECTIVES[:10]
COLOURS_CHINESE = ADJECTIVES_CHINESE[:6]

NOUNS = (
    "door", "box", "lamp", "book", "chair", "table", "cup", "key", "bag", "boat",
    "car", "tree", "stone", "river", "house", "bridge", "garden", "window", "clock", "bell",
    "ring", "coin", "hat", "coat", "shoe", "bread", "apple", "fish", "bird", "horse",
    "cat", "dog", "star", "road", "hill", "tower", "wall", "gate", "ship", "flag",
)  # fmt: skip
NOUNS_CHINESE = ("门", "书", "灯", "车", "船", "树", "花", "杯", "包", "钟", "箱", "帽", "桥")

# Of made-up names and places: syllables that read well, or any letters.
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOWELS = "aeiou"
SYLLABLES = tuple(
    head + tail for head in "bdfghklmnprstz" for tail in ("a", "e", "i", "o", "an", "el")
)
CHARACTERS = tuple("小大白红黄李王林明北南东西海山京州上广安门书花")

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
DAYS_CHINESE = tuple("星期" + day for day in "一二三四五六日")
