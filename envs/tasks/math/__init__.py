"""Math with a verifier: problems with a final answer, alone or as reasoner and tool agent."""
