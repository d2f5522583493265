"""Solutions to the five contest problems of NeMo Gym's code_gen example, in its order."""

WORDS = """
def solve():
    n = int(input())
    words = [input() for _ in range(n)]
    seen = set(words)
    groups = {"01": [], "10": []}
    zeros = ones = False
    for i, word in enumerate(words):
        ends = word[0] + word[-1]
        zeros |= ends == "00"
        ones |= ends == "11"
        if ends in groups:
            groups[ends].append(i)
    if zeros and ones and not groups["01"] and not groups["10"]:
        print(-1)
        return
    few, many = sorted(groups.values(), key=len)
    needed = (len(many) - len(few)) // 2
    chosen = [i + 1 for i in many if words[i][::-1] not in seen][:needed]
    print(len(chosen))
    print(*chosen)

for _ in range(int(input())):
    solve()
"""

DIAGONALS = """
for _ in range(int(input())):
    n, m, k = map(int, input().split())
    if max(n, m) > k:
        print(-1)
    elif (n + m) % 2:
        print(k - 1)
    elif (k - max(n, m)) % 2:
        print(k - 2)
    else:
        print(k)
"""

SEQUENCE = """
for _ in range(int(input())):
    n = int(input())
    rows = [list(map(int, input().split())) for _ in range(3)]
    chosen = []
    for i in range(n):
        taken = {chosen[-1]} if chosen else set()
        if i == n - 1:
            taken.add(chosen[0])
        chosen.append(next(row[i] for row in rows if row[i] not in taken))
    print(*chosen)
"""

BARRELS = """
for _ in range(int(input())):
    n, k = map(int, input().split())
    barrels = sorted(map(int, input().split()), reverse=True)
    print(sum(barrels[: k + 1]))
"""

BEAUTIFUL = """
for _ in range(int(input())):
    n = int(input())
    place = [0] * n
    for i, value in enumerate(map(int, input().split())):
        place[value - 1] = i
    low, high, answer = n, -1, ""
    for m in range(n):
        low, high = min(low, place[m]), max(high, place[m])
        answer += "1" if high - low == m else "0"
    print(answer)
"""

SOLUTIONS = [WORDS, DIAGONALS, SEQUENCE, BARRELS, BEAUTIFUL]
