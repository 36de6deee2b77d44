"""Providers' prompt caches: their dated rules, a simulator that obeys them, a local server, and the cost of a log.

rules/ holds the facts, rules.py finds those of a date; request.py and anthropic.py are the simulator, usage.py the
bill, why.py the reason of a miss; openai.py and gemini.py the other two providers; server.py speaks the Messages API;
log.py prices a user's own requests.
"""
