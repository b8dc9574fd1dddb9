"""Math problems with verified answers, for one agent or a reasoner with a tool agent."""
